#include <doctest/doctest.h>
#include <sinter/ir/text.h>
#include <sinter/passes/pass.h>

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

using namespace sinter;

namespace {

constexpr const char* kText = R"(graph @main(%x: f32[3]) -> f32[3] {
  %one = full {value = 1.0} : f32[3]
  %y = mul %x, %one : f32[3]
  %z = exp %y : f32[3]
  %q = neg %z : f32[3]
  return %q
})";

std::vector<std::string> names(const std::vector<PipelineStep>& steps) {
  std::vector<std::string> out;
  for (const PipelineStep& step : steps) out.emplace_back(step.pass->name);
  return out;
}

// Makes what the verifier refuses: two outputs of one name cannot be built, a use before its
// definition can.
void break_order(Module& module, PassContext&) {
  Graph& graph = *module.find("main");
  graph.move_before(*graph.back(), graph.front());
}
void fail_inside(Module&, PassContext&) {
  SINTER_CHECK(1 + 1 == 3, "on purpose");
}

std::string contents(const std::filesystem::path& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

struct Folder {
  std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("sinter-passes-" + std::to_string(::getpid()));
  Folder() { std::filesystem::create_directories(path); }
  ~Folder() { std::filesystem::remove_all(path); }
};

}  // namespace

TEST_CASE("pipeline: text and options") {
  auto steps = parse_pipeline(" canonicalize, autodiff{of=l wrt=w,x} ,cse");
  CHECK(names(steps) == std::vector<std::string>{"canonicalize", "autodiff", "cse"});
  CHECK(steps[1].options.at("of") == "l");
  CHECK(steps[1].options.at("wrt") == "w,x");
  CHECK(parse_pipeline("").empty());
  CHECK_THROWS_AS(parse_pipeline("autodiff{of=l of=m}"), Error);
  CHECK_THROWS_AS(parse_pipeline("autodiff{of=l} cse"), Error);
}

TEST_CASE("pipeline: the rest follows the last pass named") {
  std::vector<std::string> all = names(default_pipeline());
  CHECK(names(rest_of_pipeline({})) == all);
  // The first cse, then the second.
  auto rest = names(rest_of_pipeline(parse_pipeline("autodiff,cse")));
  CHECK(rest.front() == "dce");
  CHECK(rest[1] == "weight-copies");
  rest = names(rest_of_pipeline(parse_pipeline("cse,expand,cse")));
  CHECK(rest[1] == "align");
  CHECK(rest[2] == "layout");
  CHECK(rest_of_pipeline(parse_pipeline("plan-memory")).empty());
}

TEST_CASE("pass manager: a pass that breaks the module is named, with a reproducer") {
  Folder folder;
  auto module = parse_module(kText, "t.sir");
  PassInfo breaks{"breaks", "", "", break_order};
  PassManager manager;
  manager.dump_dir = folder.path.string();
  std::vector<PipelineStep> steps = parse_pipeline("canonicalize");
  steps.push_back({&breaks, {}});
  std::string message;
  try {
    manager.run(*module, steps);
  } catch (const InternalError& e) {
    message = e.what();
  }
  CHECK(message.find("pass breaks left a broken module") != std::string::npos);
  CHECK(message.find("used before its definition") != std::string::npos);
  CHECK(message.find("reproducer: ") != std::string::npos);
  std::string text = contents(folder.path / "reproducer.sir");
  CHECK(text.find("--passes='breaks'") != std::string::npos);
  // The module as it was in front of the pass, with locations, readable again.
  CHECK(text.find("mul") == std::string::npos);
  CHECK(text.find("loc(\"t.sir\":4:8)") != std::string::npos);
  CHECK_NOTHROW(parse_module(text, "reproducer.sir"));
  CHECK(std::filesystem::exists(folder.path / "01-canonicalize.sir"));
}

TEST_CASE("pass manager: a broken invariant keeps its message and names the pass") {
  Folder folder;
  auto module = parse_module(kText, "t.sir");
  PassInfo fails{"fails", "", "", fail_inside};
  PassManager manager;
  manager.dump_dir = folder.path.string();
  try {
    manager.run(*module, {{&fails, {}}});
    FAIL("nothing thrown");
  } catch (const InternalError& e) {
    std::string message = e.what();
    CHECK(message.find("pass fails: ") == 0);
    CHECK(message.find("on purpose") != std::string::npos);
  }
}

TEST_CASE("pass manager: a dump that cannot be written fails nothing") {
  Folder folder;
  std::ofstream(folder.path / "file") << "in the way";
  auto module = parse_module(kText, "t.sir");
  PassInfo fails{"fails", "", "", fail_inside};
  PassManager manager;
  manager.dump_dir = (folder.path / "file" / "below").string();
  manager.run(*module, parse_pipeline("canonicalize"));
  REQUIRE(manager.remarks().size() == 1);
  CHECK(manager.remarks()[0].str().find("01-canonicalize.sir cannot be written") !=
        std::string::npos);
  try {
    manager.run(*module, {{&fails, {}}});
    FAIL("nothing thrown");
  } catch (const InternalError& e) {
    std::string message = e.what();
    size_t at = message.find("reproducer: ");
    REQUIRE(at != std::string::npos);
    std::filesystem::path place = message.substr(at + 12);
    CHECK(contents(place).find("--passes='fails'") != std::string::npos);
    std::filesystem::remove(place);
  }
}

TEST_CASE("pass manager: what is switched off") {
  auto module = parse_module(kText, "t.sir");
  PassManager manager;
  manager.disabled = {"canonicalize", "plan-memory"};
  manager.run(*module, parse_pipeline("canonicalize,plan-memory"));
  CHECK(print(*module).find("mul") != std::string::npos);
  // plan-memory runs without sharing.
  CHECK(manager.plans.at("main").arena_bytes == 3 * 256);
  CHECK(manager.timings().size() == 1);
  manager.disabled = {"order"};
  CHECK_THROWS_AS(manager.run(*module, parse_pipeline("cse")), Error);
}
