#pragma once
// What every device must do, as bodies over a device; tests/runtime runs them on those of the host,
// tests/gpu on CUDA.

#include <sinter/ir/text.h>
#include <sinter/runtime/executable.h>
#include <sinter/tests/support.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

namespace sinter::test {

inline std::unique_ptr<Module> parse(std::string_view text) {
  return parse_module(text, "trial.sir");
}

inline CompileOptions options_for(DeviceKind device, std::vector<std::string> disabled = {}) {
  CompileOptions options;
  options.device = device;
  options.disabled = std::move(disabled);
  return options;
}

inline std::unique_ptr<Session> session_for(std::string_view text, const CompileOptions& options) {
  return make_session(compile(*parse(text), options));
}

template <typename F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

inline std::vector<double> values(const Bindings& bindings, const std::string& name) {
  auto found = bindings.find(name);
  REQUIRE_MESSAGE(found != bindings.end(), name);
  return found->second.to_doubles();
}

// Within a relative and absolute distance that f32 kernels of these sizes keep.
inline void check_near(const Tensor& got, const Tensor& want, double tolerance = 2e-5) {
  REQUIRE(got.size() == want.size());
  for (int64_t i = 0; i < got.size(); ++i) {
    double error = std::fabs(got.at(i) - want.at(i));
    INFO("element " << i << ": " << got.at(i) << " against " << want.at(i));
    CHECK(error <= tolerance * (1 + std::fabs(want.at(i))));
  }
}

// Graphs that use each class of kernel, products, and views between them.
struct Trial {
  std::string name;
  const char* text;
  std::vector<std::pair<std::string, int64_t>> inputs;  // name, fill seed; negative: indices
  int64_t modulus = 1;
};

inline std::vector<Trial> trials() {
  return {
      {"pointwise",
       R"(graph @g(%x: f32[5,33], %y: f32[33]) -> (f32[5,33], f32[5,33]) {
  %b = broadcast %y : f32[5,33]
  %s = add %x, %b : f32[5,33]
  %a = silu %s : f32[5,33]
  %t = tanh %a : f32[5,33]
  return %a, %t
})",
       {{"x", 1}, {"y", 2}}},
      {"rows",
       R"(graph @g(%x: f32[7,129], %g: f32[129], %b: f32[129]) -> (f32[7,129], f32[7,129]) {
  %n = layer_norm %x, %g, %b {eps = 0.00001} : f32[7,129]
  %p = softmax %n : f32[7,129]
  return %n, %p
})",
       {{"x", 1}, {"g", 2}, {"b", 3}}},
      {"columns",
       R"(graph @g(%x: f32[300,20]) -> (f32[20], f32[]) {
  %q = square %x : f32[300,20]
  %s = sum %q {axes = [0]} : f32[20]
  %t = sum %s {axes = [0]} : f32[]
  return %s, %t
})",
       {{"x", 1}}},
      {"columns beside their elements",
       R"(graph @g(%x: f32[301,24], %b: f32[24]) -> (f32[301,24], f32[24], f32[24], f32[301,24]) {
  %c = broadcast %b : f32[301,24]
  %a = add %x, %c : f32[301,24]
  %e = tanh %a : f32[301,24]
  %q = square %e : f32[301,24]
  %s = sum %q {axes = [0]} : f32[24]
  %t = sum %e {axes = [0]} : f32[24]
  return %e, %s, %t, %q
})",
       {{"x", 1}, {"b", 2}}},
      {"products",
       R"(graph @g(%x: f32[6,10], %w: f32[10,12], %u: f32[8,12], %c: f32[6,8]) -> (f32[6,8], f32[6,8]) {
  %h = matmul %x, %w : f32[6,12]
  %a = gelu %h : f32[6,12]
  %y = matmul %a, %u {transpose_b = true} : f32[6,8]
  %z = matmul %a, %u, c=%c {transpose_b = true} : f32[6,8]
  return %y, %z
})",
       {{"x", 1}, {"w", 2}, {"u", 3}, {"c", 4}}},
      {"views",
       R"(graph @g(%x: f32[4,6]) -> (f32[2,12], f32[6,4], f32[3,8]) {
  %a = exp %x : f32[4,6]
  %r = reshape %a : f32[2,12]
  %p = permute %a {axes = [1, 0]} : f32[6,4]
  %e = neg %a : f32[4,6]
  %f = reshape %e : f32[3,8]
  return %r, %p, %f
})",
       {{"x", 1}}},
      {"batches",
       R"(graph @g(%q: f32[2,3,5,4], %k: f32[2,3,7,4]) -> f32[2,3,5,7] {
  %s = matmul %q, %k {transpose_b = true} : f32[2,3,5,7]
  %p = softmax %s : f32[2,3,5,7]
  return %p
})",
       {{"q", 1}, {"k", 2}}},
      {"indices",
       R"(graph @g(%table: f32[9,16], %ids: i32[11], %t: i32[11]) -> (f32[11,16], f32[]) {
  %e = embedding %table, %ids : f32[11,16]
  %loss, %count = cross_entropy %e, %t : f32[], i32[]
  return %e, %loss
})",
       {{"table", 1}, {"ids", -2}, {"t", -3}},
       9},
      {"gathered rows, stored in another shape",
       R"(graph @g(%table: f32[9,128], %ids: i32[4,8], %pos: f32[8,128]) -> (f32[4,8,128], f32[32,128]) {
  %e = embedding %table, %ids : f32[4,8,128]
  %p = broadcast %pos : f32[4,8,128]
  %y = add %e, %p : f32[4,8,128]
  %r = reshape %y : f32[32,128]
  %s = softmax %r : f32[32,128]
  return %e, %s
})",
       {{"table", 1}, {"ids", -2}, {"pos", 3}},
       9},
  };
}

inline Bindings inputs_of(const Trial& trial, const Module& module) {
  Bindings inputs;
  const Graph* graph = module.find("g");
  for (const auto& [name, seed] : trial.inputs) {
    const TensorType& type = graph->find_input(name).type();
    inputs[name] = seed < 0 ? fill_mod(type, -seed, trial.modulus) : fill(type, seed);
  }
  return inputs;
}

inline void agrees_with_reference(const CompileOptions& options) {
  for (const Trial& trial : trials()) {
    CAPTURE(trial.name);
    auto module = parse(trial.text);
    Bindings inputs = inputs_of(trial, *module);
    Bindings want =
        make_session(compile(*module, options_for(DeviceKind::Reference64)))->run("g", inputs);
    auto session = make_session(compile(*module, options));
    Bindings got = session->run("g", inputs), again = session->run("g", inputs);
    REQUIRE(got.size() == want.size());
    for (const auto& entry : want) {
      CAPTURE(entry.first);
      check_near(got.at(entry.first), entry.second);
      CHECK(got.at(entry.first).same_bits(again.at(entry.first)));
    }
  }
}

// SH-08: aliases, an output named twice, a parameter updated while its old value is an output.
inline void keeps_values_alive(const CompileOptions& options) {
  auto session = session_for(R"(module {target = "host"}
state w: f32[3]

graph @g(%x: f32[3]) -> (f32[3], f32[3], f32[3], f32[3,1], f32[3]) {
  %one = full {value = 1.0} : f32[3]
  %two = full {value = 2.0} : f32[3]
  %a = add %x, %one : f32[3]
  %b = mul %a, %two : f32[3]
  %c = add %b, %a : f32[3]
  %d = reshape %a : f32[3,1]
  return a = %a, b = %b, c = %c, d = %d, again = %a
}

graph @step(%w: f32[3]) -> (f32[3], f32[3], f32[3]) {
  %one = full {value = 1.0} : f32[3]
  %n = add %w, %one : f32[3]
  %both = add %n, %w : f32[3]
  return old = %w, both = %both, w = %n
})",
                             options);
  Bindings x{{"x", Tensor::from<float>({3}, {1, 2, 3})}};
  using V = std::vector<double>;
  for (int run = 0; run < 2; ++run) {
    Bindings out = session->run("g", x);
    CHECK(values(out, "a") == V{2, 3, 4});
    CHECK(values(out, "b") == V{4, 6, 8});
    CHECK(values(out, "c") == V{6, 9, 12});
    CHECK(values(out, "d") == V{2, 3, 4});
    CHECK(values(out, "again") == V{2, 3, 4});
  }
  session->set_state("w", Tensor::from<float>({3}, {10, 20, 30}));
  Bindings out = session->run("step", {});
  CHECK(values(out, "old") == V{10, 20, 30});
  CHECK(values(out, "both") == V{21, 41, 61});
  CHECK(session->state("w").to_doubles() == V{11, 21, 31});
  out = session->run("step", {});
  CHECK(values(out, "old") == V{11, 21, 31});
  CHECK(session->state("w").to_doubles() == V{12, 22, 32});
}

// Several graphs over one state; states that exchange their values, and one that nobody updates.
inline void shares_state(const CompileOptions& options) {
  auto session = session_for(R"(module {target = "host"}
state a: f32[2]
state b: f32[2]
state n: i32[]
state still: f32[70]

graph @init() -> (f32[2], f32[2]) {
  %x = full {value = 1.0} : f32[2]
  %y = full {value = 2.0} : f32[2]
  return a = %x, b = %y
}

graph @step(%a: f32[2], %b: f32[2], %n: i32[]) -> (f32[2], f32[2], i32[]) {
  %one = full {value = 1} : i32[]
  %m = add %n, %one : i32[]
  return a = %b, b = %a, n = %m
}

graph @eval(%a: f32[2], %b: f32[2], %still: f32[70], %x: f32[]) -> (f32[2], f32[]) {
  %d = sub %a, %b : f32[2]
  %y = broadcast %x : f32[2]
  %e = mul %d, %y : f32[2]
  %s = sum %still {axes = [0]} : f32[]
  return %e, %s
})",
                             options);
  using V = std::vector<double>;
  session->run("init", {});
  session->set_state("still", Tensor::full({DType::F32, {70}}, 0.5));
  Bindings x{{"x", Tensor::scalar(10.0F)}};
  CHECK(values(session->run("eval", x), "e") == V{-10, -10});
  session->launch("step", {});
  CHECK(values(session->run("eval", x), "e") == V{10, 10});
  for (int i = 0; i < 4; ++i) session->launch("step", {});
  session->synchronize();
  CHECK(session->state("a").to_doubles() == V{2, 2});
  CHECK(session->state("n").to_doubles() == V{5});
  Bindings out = session->run("eval", x);
  CHECK(values(out, "s") == V{35});
}

// RT-04: both sides of the mismatch, before anything runs.
inline void refuses_bindings(const CompileOptions& options) {
  auto session = session_for(R"(module {target = "host"}
state w: f32[2]

graph @g(%w: f32[2], %ids: i32[3], %x: f32[2]) -> (f32[2], f32[2]) {
  %y = add %w, %x : f32[2]
  %i = cast %ids : f32[3]
  %s = sum %i {axes = [0], keep = true} : f32[1]
  %z = broadcast %s : f32[2]
  %v = add %y, %z : f32[2]
  return y = %y, w = %v
})",
                             options);
  Tensor ids = Tensor::from<int32_t>({3}, {1, 2, 3}), x = Tensor::from<float>({2}, {1, 2});
  auto refusal = [&](const Bindings& inputs) {
    return error_of([&] { session->run("g", inputs); });
  };
  CHECK(refusal({{"x", x}, {"ids", Tensor::from<int64_t>({3}, {1, 2, 3})}}) ==
        "error: input 'ids' expects i32[3], given i64[3]");
  CHECK(refusal({{"x", Tensor::from<float>({2, 1}, {1, 2})}, {"ids", ids}}) ==
        "error: input 'x' expects f32[2], given f32[2,1]");
  CHECK(refusal({{"x", x}}) == "error: input 'ids' (i32[3]) of @g is not given");
  CHECK(refusal({{"x", x}, {"ids", ids}, {"z", x}}) ==
        "error: @g has no input 'z'; it takes ids, x");
  CHECK(refusal({{"x", x}, {"ids", ids}, {"w", x}}) ==
        "error: 'w' is a state of the session, not an input of @g");
  CHECK(error_of([&] { session->set_state("w", ids); }) ==
        "error: state 'w' expects f32[2], given i32[3]");
  CHECK(error_of([&] { session->set_state("v", x); }) == "error: there is no state 'v'");
  CHECK(error_of([&] { (void)session->state("v"); }) == "error: there is no state 'v'");
  CHECK(error_of([&] { session->run("h", {}); }).find("there is no entry graph @h") !=
        std::string::npos);
  CHECK(error_of([&] { session->outputs("g"); }).find("@g has not been run") != std::string::npos);
  // Nothing ran: the state is as it began.
  CHECK(session->state("w").to_doubles() == std::vector<double>{0, 0});
  CHECK(values(session->run("g", {{"x", x}, {"ids", ids}}), "y") == std::vector<double>{1, 2});
  CHECK(session->state("w").to_doubles() == std::vector<double>{7, 8});
}

// MP-02: step count and learning rate are values of the run; one compile serves all.
inline void follows_the_schedule(const CompileOptions& options) {
  const char* text = R"(module {target = "host"}
state p: f32[1]
state m: f32[1]
state v: f32[1]
state t: i32[]

graph @step(%p: f32[1], %m: f32[1], %v: f32[1], %t: i32[], %g: f32[1], %lr: f32[]) -> (f32[1], f32[1], f32[1], i32[]) {
  %one = full {value = 1} : i32[]
  %t1 = add %t, %one : i32[]
  %p1, %m1, %v1 = adamw %p, %g, %m, %v, %t1, %lr : f32[1], f32[1], f32[1]
  return p = %p1, m = %m1, v = %v1, t = %t1
})";
  auto executable = compile(*parse(text), options);
  for (bool growing : {false, true}) {
    auto session = make_session(executable);
    session->set_state("p", Tensor::from<float>({1}, {1}));
    for (int t = 1; t <= 10; ++t) {
      float lr = 0.001F * static_cast<float>(growing ? t : 1);
      session->launch("step", {{"g", Tensor::from<float>({1}, {1})}, {"lr", Tensor::scalar(lr)}});
    }
    CHECK(session->state("t").at(0) == 10);
    CHECK(session->state("p").at(0) == doctest::Approx(growing ? 0.945 : 0.99).epsilon(1e-6));
  }
}

// A bad index is reported with op, place, value and limits, and changes no state; it stays reported
// until read.
inline void keeps_state_on_faults(const CompileOptions& options) {
  auto session = session_for(R"(module {target = "host"}
state table: f32[4,2]
state steps: i32[]

graph @step(%table: f32[4,2], %steps: i32[], %ids: i32[3]) -> (f32[4,2], i32[], f32[]) {
  %e = embedding %table, %ids : f32[3,2]
  %s = sum %e {axes = [0, 1]} : f32[]
  %d = broadcast %s : f32[4,2]
  %n = add %table, %d : f32[4,2]
  %one = full {value = 1} : i32[]
  %m = add %steps, %one : i32[]
  return table = %n, steps = %m, s = %s
})",
                             options);
  session->set_state("table", Tensor::full({DType::F32, {4, 2}}, 1));
  Bindings good{{"ids", Tensor::from<int32_t>({3}, {0, 3, 1})}};
  CHECK(values(session->run("step", good), "s") == std::vector<double>{6});
  CHECK(session->state("table").at(7) == 7);
  for (int32_t bad : {4, -1}) {
    Bindings inputs{{"ids", Tensor::from<int32_t>({3}, {0, bad, bad})}};
    std::string message = error_of([&] { session->run("step", inputs); });
    CHECK(message == fmt::format("trial.sir:6:8: error: embedding: index {} at position 1 is "
                                 "outside 0..3",
                                 bad));
    CHECK(session->state("table").at(7) == 7);
    CHECK(session->state("steps").at(0) == 1);
  }
  // Launched without waiting, a failed step holds up those behind it until somebody reads it.
  session->launch("step", {{"ids", Tensor::from<int32_t>({3}, {0, 9, 1})}});
  session->launch("step", good);
  CHECK(session->state("steps").at(0) == 1);
  CHECK(error_of([&] { session->outputs("step"); }).find("embedding: index 9 at position 1") !=
        std::string::npos);
  CHECK(values(session->run("step", good), "s") == std::vector<double>{42});
  CHECK(session->state("steps").at(0) == 2);
}

// Gradients are summed by one graph and used by another: a bad index in the first holds back the
// second, and every other graph, until somebody reads any of them.
inline void holds_back_all_graphs(const CompileOptions& options) {
  auto session = session_for(R"(module {target = "host"}
state table: f32[4,2]
state sum: f32[]

graph @accumulate(%table: f32[4,2], %sum: f32[], %ids: i32[3]) -> (f32[], f32[]) {
  %e = embedding %table, %ids : f32[3,2]
  %s = sum %e {axes = [0, 1]} : f32[]
  %n = add %sum, %s : f32[]
  return sum = %n, s = %s
}

graph @update(%table: f32[4,2], %sum: f32[]) -> (f32[4,2], f32[], f32[]) {
  %d = broadcast %sum : f32[4,2]
  %n = add %table, %d : f32[4,2]
  %zero = full {value = 0.0} : f32[]
  return table = %n, sum = %zero, used = %sum
}

graph @look(%table: f32[4,2], %ids: i32[1]) -> f32[] {
  %e = embedding %table, %ids : f32[1,2]
  %m = max %e {axes = [0, 1]} : f32[]
  return %m
})",
                             options);
  using V = std::vector<double>;
  Bindings good{{"ids", Tensor::from<int32_t>({3}, {0, 3, 1})}};
  Bindings bad{{"ids", Tensor::from<int32_t>({3}, {0, 3, 7})}};
  Bindings first{{"ids", Tensor::from<int32_t>({1}, {0})}};
  std::string message = "trial.sir:6:8: error: embedding: index 7 at position 2 is outside 0..3";
  session->set_state("table", Tensor::full({DType::F32, {4, 2}}, 1));
  session->launch("accumulate", good);
  session->launch("update", {});
  CHECK(values(session->outputs("update"), "used") == V{6});
  CHECK(session->state("table").at(0) == 7);
  auto unchanged = [&](double sum) {
    CHECK(session->state("table").to_doubles() == V(8, 7));
    CHECK(session->state("sum").at(0) == sum);
  };

  // Behind the bad one in the order of launches, whichever is read.
  for (std::string read : {"accumulate", "update"}) {
    CAPTURE(read);
    session->launch("accumulate", good);
    session->launch("accumulate", bad);
    session->launch("update", {});
    session->launch("accumulate", good);
    CHECK(error_of([&] { session->outputs(read); }) == message);
    unchanged(42);
    // Read once; what was held back has no outputs to give.
    CHECK(error_of([&] { session->outputs("update"); }).find("@update has not been run") !=
          std::string::npos);
    session->set_state("sum", Tensor::scalar(0.0F));
  }
  // A run of another graph is a reading, too.
  session->launch("accumulate", bad);
  CHECK(error_of([&] { session->run("update", {}); }) == message);
  unchanged(0);
  session->launch("accumulate", bad);
  CHECK(error_of([&] { session->run("look", first); }) == message);
  CHECK(values(session->run("look", first), "m") == V{7});
  session->launch("accumulate", good);
  CHECK(values(session->run("update", {}), "used") == V{42});
  CHECK(session->state("table").at(0) == 49);
}

// DR-03: masks follow seed and step, not the number of runs.
inline void draws_by_step(const CompileOptions& options) {
  const char* text =
      R"(graph @g(%x: f32[4,64], %seed: u32[2], %step: u32[], %offset: i64[]) -> f32[4,64] {
  %y = dropout %x, %seed, %step, %offset {p = 0.5, site = 3} : f32[4,64]
  return %y
})";
  auto executable = compile(*parse(text), options);
  auto mask = [&](Session& session, uint32_t seed, uint32_t step) {
    Bindings inputs{{"x", Tensor::full({DType::F32, {4, 64}}, 1)},
                    {"seed", Tensor::from<uint32_t>({2}, {seed, 0})},
                    {"step", Tensor::scalar(step)},
                    {"offset", Tensor::scalar(int64_t{0})}};
    return session.run("g", inputs).at("y");
  };
  auto first = make_session(executable), second = make_session(executable);
  Tensor one = mask(*first, 7, 1), two = mask(*first, 7, 2), three = mask(*first, 7, 3);
  CHECK_FALSE(one.same_bits(two));
  CHECK_FALSE(two.same_bits(three));
  CHECK_FALSE(one.same_bits(three));
  CHECK(mask(*second, 7, 1).same_bits(one));
  CHECK(mask(*second, 7, 3).same_bits(three));
  CHECK_FALSE(mask(*second, 8, 1).same_bits(one));
  auto reference = session_for(text, options_for(DeviceKind::Reference));
  CHECK(mask(*reference, 7, 2).same_bits(two));
}

inline void runs_empty_graphs(const CompileOptions& options) {
  auto session =
      session_for(R"(graph @g(%x: f32[0,3], %w: f32[3,2]) -> (f32[0,3], f32[0,2], f32[3]) {
  %y = exp %x : f32[0,3]
  %z = matmul %y, %w : f32[0,2]
  %s = sum %y {axes = [0]} : f32[3]
  return %y, %z, %s
})",
                  options);
  Bindings out =
      session->run("g", {{"x", Tensor({DType::F32, {0, 3}})}, {"w", Tensor({DType::F32, {3, 2}})}});
  CHECK(out.at("y").size() == 0);
  CHECK(out.at("z").size() == 0);
  CHECK(values(out, "s") == std::vector<double>{0, 0, 0});
}

// One block of a model with its loss and gradients, which uses every kind of fusion.
inline const char* block_text() {
  return R"(module {target = "host"}
state w: f32[24,24]
state u: f32[24,24]
state gain: f32[24]
state bias: f32[24]

graph @step(%w: f32[24,24], %u: f32[24,24], %gain: f32[24], %bias: f32[24], %x: f32[40,24], %t: i32[40], %seed: u32[2], %step: u32[], %offset: i64[]) -> f32[] {
  %n = layer_norm %x, %gain, %bias {eps = 0.00001} : f32[40,24]
  %h = matmul %n, %w {segment = "block"} : f32[40,24]
  %a = gelu %h {segment = "block", approximate = "tanh"} : f32[40,24]
  %d = dropout %a, %seed, %step, %offset {segment = "block", p = 0.25, site = 1} : f32[40,24]
  %r = add %x, %d : f32[40,24]
  %z = matmul %r, %u {transpose_b = true} : f32[40,24]
  %l, %count = cross_entropy %z, %t : f32[], i32[]
  return %l
})";
}

inline Bindings run_block(CompileOptions options) {
  options.pipeline = parse_pipeline("autodiff{of=l wrt=w,u,gain,bias,x}");
  for (PipelineStep& step : rest_of_pipeline(options.pipeline))
    options.pipeline.push_back(std::move(step));
  auto session = session_for(block_text(), options);
  session->set_state("w", fill({DType::F32, {24, 24}}, 1));
  session->set_state("u", fill({DType::F32, {24, 24}}, 2));
  session->set_state("gain", fill({DType::F32, {24}}, 3));
  session->set_state("bias", fill({DType::F32, {24}}, 4));
  return session->run("step", {{"x", fill({DType::F32, {40, 24}}, 5)},
                               {"t", fill_mod({DType::I32, {40}}, 6, 24)},
                               {"seed", Tensor::from<uint32_t>({2}, {1, 2})},
                               {"step", Tensor::scalar(uint32_t{3})},
                               {"offset", Tensor::scalar(int64_t{0})}});
}

// Switching these off changes no bit of loss or gradients.
inline void keeps_bits_without(DeviceKind device) {
  Bindings want = run_block(options_for(device));
  REQUIRE(want.size() == 6);
  CHECK(std::isfinite(want.at("l").at(0)));
  for (std::string pass : {"fuse", "cse", "recompute", "layout", "bundle", "plan-memory"}) {
    CAPTURE(pass);
    Bindings got = run_block(options_for(device, {pass}));
    for (const auto& entry : want) {
      CAPTURE(entry.first);
      CHECK(got.at(entry.first).same_bits(entry.second));
    }
  }
}

}  // namespace sinter::test
