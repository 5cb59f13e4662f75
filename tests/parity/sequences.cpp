// Whole models in use: sequences of a batch do not see each other, and a small model can learn a
// table by heart.

#include <sinter/frontends/dsl/program.h>
#include <sinter/sinter.h>
#include <sinter/tests/cases/devices.h>
#include <sinter/tests/parity/model.h>

using namespace sinter;
using namespace sinter::test;

namespace {

Tensor ids_of(Shape shape, const std::vector<int32_t>& ids) {
  return Tensor::from<int32_t>(std::move(shape), ids);
}

}  // namespace

TEST_CASE("parity: a batch of four equals four runs of one") {
  for (const ParityModel& m : parity_models()) {
    CAPTURE(m.name);
    Model model;
    const Scope four = model.graph("four"), one = model.graph("one");
    four.output("logits", nn::gpt(four, four.input("ids", i32({4, kContext})), m.config));
    one.output("logits", nn::gpt(one, one.input("ids", i32({1, kContext})), m.config));
    std::vector<int32_t> ids;
    for (int32_t i = 0; i < 4 * kContext; ++i) ids.push_back((5 * i * i + 3 * i + 1) % 13);
    const SafetensorsFile file = golden(m);
    for (DeviceKind device : devices_here()) {
      CAPTURE(to_string(device));
      CompileOptions options;
      options.device = device;
      auto session = make_session(compile(model.module(), options));
      for (const std::string& name : parameter_names(file))
        session->set_state(name, file.read(name));
      const Tensor all = session->run("four", {{"ids", ids_of({4, kContext}, ids)}}).at("logits");
      const int64_t rows = kContext * kVocab;
      for (int64_t b = 0; b < 4; ++b) {
        CAPTURE(b);
        const std::vector<int32_t> part(ids.begin() + b * kContext,
                                        ids.begin() + (b + 1) * kContext);
        const Tensor y = session->run("one", {{"ids", ids_of({1, kContext}, part)}}).at("logits");
        double error = 0, size = 0;
        for (int64_t i = 0; i < rows; ++i) {
          error = std::max(error, std::abs(y.at(i) - all.at(b * rows + i)));
          size = std::max(size, std::abs(y.at(i)));
        }
        CHECK(size > 0.1);
        CHECK(error <= 1e-6 * std::max(size, 1.0));
      }
    }
  }
}

TEST_CASE("parity: two layers memorise 27 sequences") {
  // Every word of three letters out of three, and which of 27 tokens follows it: no rule, a table.
  constexpr int64_t kWords = 27;
  std::vector<int32_t> ids, targets, rows;
  for (int32_t i = 0; i < kWords; ++i) {
    ids.insert(ids.end(), {i / 9, i / 3 % 3, i % 3});
    targets.push_back((10 * i * i * i + 7 * i + 4) % 27);
    rows.push_back(3 * i + 2);
  }
  for (const ParityModel& m : parity_models()) {
    CAPTURE(m.name);
    nn::GptConfig config = m.config;
    config.vocab = kWords;
    config.context = 3;
    config.width = 32;
    config.hidden = 64;
    Model model;
    const Scope step = model.graph("step", Mode::Training);
    const Value logits = nn::gpt(step, step.input("ids", i32({kWords, 3})), config,
                                 step.input("rows", i32({kWords})));
    step.output("logits", logits);
    const Value loss = cross_entropy(logits, step.input("targets", i32({kWords}))).loss;
    step.output("loss", loss);
    minimize(loss, step.parameters(), AdamW{.weight_decay = 0});
    CompileOptions options;
    options.device = best_device();
    Program program(model, options);
    program.init(1);
    int right = 0;
    double last = 0;
    for (int i = 0; i < 150 && right < kWords; ++i) {
      const Bindings out = program.run("step", {{"ids", ids_of({kWords, 3}, ids)},
                                                {"rows", ids_of({kWords}, rows)},
                                                {"targets", ids_of({kWords}, targets)},
                                                {"lr", Tensor::scalar(1e-2f)}});
      last = out.at("loss").at(0);
      const Tensor& z = out.at("logits");
      right = 0;
      for (int64_t w = 0; w < kWords; ++w) {
        const float* row = z.as<float>() + w * kWords;
        right += std::max_element(row, row + kWords) - row == targets[static_cast<size_t>(w)];
      }
    }
    MESSAGE(m.name, ": ", right, " of 27, loss ", last);
    CHECK(right == kWords);
  }
}
