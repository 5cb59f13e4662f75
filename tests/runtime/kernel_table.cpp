#include <doctest/doctest.h>
#include <sinter/ir/text.h>
#include <sinter/runtime/detail/kernel_table.h>

using namespace sinter;

// Two kernels that share a symbol, as an accident of its short hash, are both kept.
TEST_CASE("kernel table: equal programs are one, different ones never share a symbol") {
  Module module;
  std::vector<LoopProgram> programs;
  detail::KernelTable table(module, programs);
  auto program = [](int64_t grid) {
    LoopProgram made;
    made.symbol = "add_00000000";
    made.grid = grid;
    For loop;
    loop.loop = 0;
    loop.extent = grid;
    loop.level = Level::Cores;
    made.body.push_back({std::move(loop)});
    return made;
  };
  CHECK(table.intern(program(1)) == 0);
  CHECK(table.intern(program(2)) == 1);
  CHECK(table.intern(program(1)) == 0);
  CHECK(table.intern(program(3)) == 2);
  REQUIRE(programs.size() == 3);
  CHECK(programs[0].symbol == "add_00000000");
  CHECK(programs[1].symbol == "add_00000000_2");
  CHECK(programs[2].symbol == "add_00000000_3");
}
