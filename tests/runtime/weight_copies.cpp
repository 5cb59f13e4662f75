#include <sinter/tests/weight_copy_cases.h>

using namespace sinter;

TEST_CASE("weight copies: the bits of casting in each run, whoever writes the weight") {
  for (const DeviceEntry& device : list_devices()) {
    bool host = device.kind == DeviceKind::Interpreter || device.kind == DeviceKind::Cpu;
    if (!host || !device.unavailable.empty()) continue;
    CAPTURE(to_string(device.kind));
    test::keeps_weight_copies(test::options_for(device.kind));
  }
  CompileOptions options = test::options_for(DeviceKind::Interpreter);
  options.target = "sm_90a";
  test::keeps_weight_copies(options);
}

TEST_CASE("weight copies: the reference follows what is set") {
  for (DeviceKind kind : {DeviceKind::Reference, DeviceKind::Reference64}) {
    CompileOptions options = test::options_for(kind);
    options.pipeline =
        parse_pipeline("verify,autocast,autodiff,optimizer,round-operands,weight-copies");
    auto session = test::session_for(test::weight_copy_text(), options);
    Tensor given = test::waves({DType::F32, {8, 8}}, 0.7);
    session->set_state("w", given);
    Tensor copy = session->state("w.bf16");
    bool wide = kind == DeviceKind::Reference64;
    CHECK(copy.same_bits(given.to(wide ? DType::F64 : DType::BF16)));
    session->run("step",
                 {{"x", test::waves({DType::F32, {4, 8}}, 1)}, {"lr", Tensor::scalar(0.01F)}});
    CHECK(!session->state("w.bf16").same_bits(copy));
  }
}
