// Trains a classifier on the images of Fashion-MNIST: 60,000 photographs of clothes in ten classes,
// 28 x 28 pixels, and 10,000 others to judge it by. `fashion_mnist --help` lists the flags.
//
// The data comes from Debian's package dataset-fashion-mnist, or from --data DIR.

#include <sinter/frontends/cli/numbers.h>
#include <sinter/frontends/data/images.h>
#include <sinter/frontends/train/device.h>
#include <sinter/frontends/train/report.h>
#include <sinter/frontends/train/trainer.h>
#include <sinter/sinter.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>

using namespace sinter;

namespace {

constexpr int64_t kClasses = 10;

struct Options {
  std::string model = "mlp", data = data::fashion_mnist_folder(), device = "auto", out;
  int64_t batch = 128, epochs = 10, steps = 0;
  double lr = 1e-3;
  uint64_t seed = 1;
};

// Logits [rows, 10] of images [rows, height, width] with pixels from 0 to 1.
Value mlp(Scope g, Value images) {
  Value x = (images - 0.5) * 2.0;
  x = reshape(x, {images.dim(0), images.dim(1) * images.dim(2)});
  x = relu(nn::linear(g / "first", x, 256));
  x = relu(nn::linear(g / "second", x, 128));
  return nn::linear(g / "last", x, kClasses);
}

// A 3 x 3 convolution that keeps the images' size, then relu and the maxima of 2 x 2 pixels.
Value conv_block(Scope g, Value x, int64_t channels) {
  nn::Conv2dOptions options;
  options.window.padding = {1, 1};
  return max_pool(relu(nn::conv2d(g, x, channels, {3, 3}, options)), {.kernel = {2, 2}});
}

Value conv(Scope g, Value images) {
  Value x = (images - 0.5) * 2.0;
  x = reshape(x, {images.dim(0), 1, images.dim(1), images.dim(2)});
  x = conv_block(g / "first", x, 16);
  x = conv_block(g / "second", x, 32);
  x = reshape(x, {x.dim(0), x.dim(1) * x.dim(2) * x.dim(3)});
  return nn::linear(g / "last", x, kClasses);
}

struct Network {
  const char* name;
  Value (*build)(Scope g, Value images);
};
constexpr Network kNetworks[] = {{"mlp", mlp}, {"conv", conv}};

const Network* find_network(const std::string& name) {
  for (const Network& n : kNetworks)
    if (name == n.name) return &n;
  return nullptr;
}

std::unique_ptr<Model> build(const Network& network, const data::LabelledImages& images,
                             int64_t batch) {
  auto model = std::make_unique<Model>();
  TensorType pixels = f32({batch, images.height(), images.width()});
  Scope step = model->graph("step", Mode::Training);
  Value logits = network.build(step, step.input("images", pixels));
  Value loss = cross_entropy(logits, step.input("labels", i32({batch}))).loss.named("loss");
  step.output("loss", loss);
  minimize(loss, step.parameters(), AdamW{}, {.grad_norm = "grad_norm"});

  Scope eval = model->graph("eval");
  logits = network.build(eval, eval.input("images", pixels));
  eval.output("logits", logits);
  eval.output("loss_sum",
              cross_entropy(logits, eval.input("labels", i32({batch})), -100, "sum").loss);
  return model;
}

struct Verdict {
  double loss = 0, accuracy = 0;
};
Verdict judge(Program& program, const data::LabelledImages& images, int64_t batch) {
  Verdict verdict;
  for (int64_t i = 0; i < images.ordered_batches(batch); ++i) {
    data::ImageBatch rows = images.ordered_batch(batch, i);
    Bindings out = program.run("eval", {{"images", rows.images}, {"labels", rows.labels}});
    verdict.loss += out.at("loss_sum").at(0);
    const float* logits = out.at("logits").as<float>();
    for (int64_t row = 0; row < batch; ++row, logits += kClasses)
      if (std::max_element(logits, logits + kClasses) - logits == rows.labels.as<int32_t>()[row])
        ++verdict.accuracy;
  }
  verdict.loss /= static_cast<double>(images.count());
  verdict.accuracy /= static_cast<double>(images.count());
  return verdict;
}

void train_on(const Options& o, const data::LabelledImages& training,
              const data::LabelledImages& test, DeviceKind device) {
  CompileOptions compile;
  compile.device = device;
  auto model = build(*find_network(o.model), training, o.batch);
  Program program(*model, compile);
  const CompileStats& stats = program.executable().stats();
  fmt::print(stderr, "{}: compiled in {:.1f} s ({} kernels, {} from the cache)\n",
             to_string(device), stats.seconds, stats.kernels, stats.cached);
  program.init(o.seed);

  const int64_t an_epoch = training.ordered_batches(o.batch);
  train::LearningRate rate{.peak = o.lr, .steps = o.steps > 0 ? o.steps : o.epochs * an_epoch};
  train::Metrics metrics(o.out);
  train::Progress progress(stderr, rate.steps);
  double seconds = 0;
  Verdict verdict;
  for (int64_t step = 0; step < rate.steps; ++step) {
    data::ImageBatch rows = training.batch(o.batch, o.seed, step);
    double lr = rate.at(step);
    auto start = std::chrono::steady_clock::now();
    Bindings out = program.run("step", {{"images", rows.images},
                                        {"labels", rows.labels},
                                        {"lr", Tensor::scalar(static_cast<float>(lr))}});
    double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    seconds += took;
    double loss = out.at("loss").at(0), images = static_cast<double>(o.batch);
    metrics.write({{"step", step + 1},
                   {"loss", loss},
                   {"lr", lr},
                   {"grad_norm", out.at("grad_norm").at(0)},
                   {"images_per_s", images / took},
                   {"ms", took * 1e3}});
    progress.show(step + 1, loss, images * static_cast<double>(step + 1) / seconds, "images/s",
                  seconds);
    if ((step + 1) % an_epoch != 0 && step + 1 != rate.steps) continue;
    verdict = judge(program, test, o.batch);
    metrics.write(
        {{"step", step + 1}, {"test_loss", verdict.loss}, {"test_accuracy", verdict.accuracy}});
    progress.note(fmt::format("step {}: test loss {:.4f}, accuracy {:.4f}", step + 1, verdict.loss,
                              verdict.accuracy));
  }
  fmt::print("test accuracy {:.4f}\n", verdict.accuracy);
}

bool parse(int argc, const char* const* argv, Options& o) {
  CLI::App app("Trains a classifier on the images of Fashion-MNIST.", "fashion_mnist");
  std::vector<std::string> names;
  for (const Network& n : kNetworks) names.emplace_back(n.name);
  app.add_option("--model", o.model, "the network")->check(CLI::IsMember(names));
  app.add_option("--data", o.data, "folder of the idx files")->capture_default_str();
  app.add_option("--batch", o.batch, "images a step")->check(cli::above_zero());
  app.add_option("--epochs", o.epochs, "times through the images")->check(cli::above_zero());
  app.add_option("--steps", o.steps, "training steps, instead of --epochs")
      ->check(cli::above_zero());
  app.add_option("--lr", o.lr, "peak learning rate")->check(cli::above_zero());
  app.add_option("--seed", o.seed, "of weights and the order of images");
  app.add_option("--device", o.device, "auto, cuda, cpu or reference")
      ->check(CLI::IsMember({"auto", "cuda", "cpu", "reference"}));
  app.add_option("--out", o.out, "folder for metrics.jsonl; nothing is written without it");
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    fmt::print("{}", app.help());
    return false;
  } catch (const CLI::ParseError& e) {
    throw Error(e.what());
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) try {
  Options o;
  if (!parse(argc, argv, o)) return 0;
  if (o.data == data::fashion_mnist_folder() && !data::have_fashion_mnist())
    throw Error(
        fmt::format("no images in {}: install Debian's package dataset-fashion-mnist, or "
                    "name the folder of the idx files with --data",
                    o.data));
  data::LabelledImages training(o.data, "train", kClasses), test(o.data, "t10k", kClasses);
  if (training.height() != test.height() || training.width() != test.width())
    throw Error(
        fmt::format("the images to train on and to judge by differ in size: {} x {}, {} x {}",
                    training.height(), training.width(), test.height(), test.width()));
  train::on_device(
      o.device, [&](DeviceKind device) { train_on(o, training, test, device); }, stderr);
  return 0;
} catch (const std::exception& e) {
  std::fprintf(stderr, "fashion_mnist: %s\n", e.what());
  return 1;
}
