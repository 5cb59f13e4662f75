#include <sinter/frontends/checkpoint/safetensors.h>

#include <fmt/format.h>
#include <signal.h>
#include <sinter/ir/diagnostic.h>
#include <sinter/runtime/tensor_text.h>
#include <sinter/tests/support.h>
#include <sinter/tests/temporary_folder.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

using namespace sinter;
namespace fs = std::filesystem;

namespace {

struct Folder : sinter::test::TemporaryFolder {
  std::string file(const char* name = "t.safetensors") const { return path / name; }
};

std::string read_bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// A file of this header and this many bytes of data.
void write_raw(const std::string& path, const std::string& header, size_t data) {
  std::string bytes(8, '\0');
  for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(header.size() >> (8 * i));
  std::ofstream(path, std::ios::binary) << bytes << header << std::string(data, '\1');
}

std::string refusal(const std::string& path) {
  try {
    SafetensorsFile file(path);
  } catch (const Error& e) {
    CHECK(e.diagnostic().message.starts_with(path + ": "));
    return e.diagnostic().message.substr(path.size() + 2);
  }
  return "";
}

bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("safetensors: every type, shape and bit pattern comes back") {
  Folder folder;
  std::vector<NamedTensor> tensors;
  for (DType type : {DType::Bool, DType::F16, DType::F64, DType::F32, DType::BF16, DType::I32,
                     DType::I64, DType::U32})
    tensors.emplace_back(std::string("t.") + std::string(to_string(type)),
                         fill_mod({type, {3, 5}}, 4, type == DType::Bool ? 2 : 97));
  tensors.emplace_back("scalar \"ü\"", Tensor::scalar<float>(NAN));
  tensors.emplace_back("empty", Tensor({DType::I64, {0, 4}}));
  tensors.emplace_back("also empty", Tensor({DType::F32, {2, 0}}));
  const SafetensorsMetadata metadata = {{"format", "pt"}, {"note", "a \"quoted\" text\n"}};
  write_safetensors(folder.file(), tensors, metadata);
  const SafetensorsFile file(folder.file());
  CHECK(file.metadata() == metadata);
  CHECK(file.entries().size() == tensors.size());
  for (const auto& tensor : tensors) {
    const auto& name = tensor.first;
    const Tensor& value = tensor.second;
    CAPTURE(name);
    REQUIRE(file.find(name));
    CHECK(file.find(name)->type == value.type());
    CHECK(file.read(name).same_bits(value));
    // Data is aligned to its element.
    CHECK(file.find(name)->begin % static_cast<uint64_t>(size_of(value.dtype())) == 0);
  }
  const auto all = read_safetensors(folder.file());
  CHECK(all.size() == tensors.size());
  CHECK(std::is_sorted(all.begin(), all.end(),
                       [](const auto& a, const auto& b) { return a.first < b.first; }));
  CHECK(!file.find("t"));
  CHECK_THROWS_AS(file.read("t"), Error);
  CHECK(parse_value("x", {DType::I32, {3, 5}}, "@" + folder.file() + ":t.i32", load_safetensors)
            .same_bits(file.read("t.i32")));

  // The same content in another order is the same file; data begins at a multiple of 8.
  const std::string bytes = read_bytes(folder.file());
  std::reverse(tensors.begin(), tensors.end());
  write_safetensors(folder.file("u"), tensors, metadata);
  CHECK(read_bytes(folder.file("u")) == bytes);
  CHECK(static_cast<unsigned char>(bytes[0]) % 8 == 0);

  write_safetensors(folder.file("none"), {});
  CHECK(SafetensorsFile(folder.file("none")).entries().empty());
}

TEST_CASE("safetensors: the bytes of a small file") {
  Folder folder;
  const std::vector<NamedTensor> tensors = {{"w", Tensor::from<float>({2}, {1, -2})}};
  write_safetensors(folder.file(), tensors);
  const std::string header = R"({"w":{"data_offsets":[0,8],"dtype":"F32","shape":[2]}})";
  std::string want = {static_cast<char>((header.size() + 7) / 8 * 8), 0, 0, 0, 0, 0, 0, 0};
  want += header;
  want.resize(8 + (header.size() + 7) / 8 * 8, ' ');
  want += std::string("\x00\x00\x80\x3f\x00\x00\x00\xc0", 8);
  CHECK(read_bytes(folder.file()) == want);
}

TEST_CASE("safetensors: bad headers are refused") {
  Folder folder;
  const std::string path = folder.file();
  auto with = [&](const std::string& header, size_t data = 8) {
    write_raw(path, header, data);
    return refusal(path);
  };
  const std::string good = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  CHECK(with(good) == "");
  CHECK(with(good + "   ") == "");
  CHECK(contains(refusal(folder.file("missing")), "cannot open"));
  CHECK(contains(refusal(folder.path), "not a file"));
  std::ofstream(path, std::ios::binary) << "short";
  CHECK(contains(refusal(path), "too short"));
  std::ofstream(path, std::ios::binary) << std::string(8, '\xff') + good;
  CHECK(contains(refusal(path), "beyond 100000000"));
  std::ofstream(path, std::ios::binary) << std::string("\x7f\0\0\0\0\0\0\0", 8) + good;
  CHECK(contains(refusal(path), "beyond the end of the file"));
  CHECK(contains(with(" " + good), "does not begin with '{'"));
  CHECK(contains(with("[]"), "does not begin with '{'"));
  CHECK(contains(with(""), "does not begin"));
  CHECK(contains(with("{\"a\":"), "bad header"));
  CHECK(contains(with(good + "x"), "bad header"));
  CHECK(contains(with("{\"\xff\":1}"), "bad header"));
  CHECK(contains(with(R"({"a":1})"), "tensor 'a': does not have exactly"));
  CHECK(contains(with(R"({"a":{"dtype":"F32","shape":[2]}})"), "does not have exactly"));
  CHECK(contains(with(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":0}})"),
                 "does not have exactly"));
  CHECK(contains(with(R"({"a":{"dtype":"F8_E4M3","shape":[8],"data_offsets":[0,8]}})"),
                 "dtype F8_E4M3 is not supported"));
  CHECK(contains(with(R"({"a":{"dtype":4,"shape":[2],"data_offsets":[0,8]}})"), "not a string"));
  CHECK(contains(with(R"({"a":{"dtype":"F32","shape":2,"data_offsets":[0,8]}})"), "not a list"));
  CHECK(contains(with(R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})"), "not a size"));
  CHECK(
      contains(with(R"({"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}})"), "not a size"));
  CHECK(contains(with(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0]}})"), "not a pair"));
  CHECK(contains(with(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})"), "takes 8"));
  CHECK(contains(with(R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})"),
                 "f32[3] takes 12 bytes"));
  CHECK(contains(with(R"({"a":{"dtype":"F32","shape":[4611686018427387904,4,2],)"
                      R"("data_offsets":[0,0]}})"),
                 "does not fit 64 bits"));
  CHECK(contains(with(R"({"__metadata__":1})", 0), "not an object"));
  CHECK(contains(with(R"({"__metadata__":{"a":1}})", 0), "not a string"));
  CHECK(contains(with(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                      R"("a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})"),
                 "key 'a' repeats"));
  CHECK(contains(with(R"({"a":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}})"),
                 "key 'dtype' repeats"));
  // The same key in two objects is no repetition.
  CHECK(with(R"({"dtype":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})") == "");
}

TEST_CASE("safetensors: overlaps, gaps and short data are refused") {
  Folder folder;
  const std::string path = folder.file();
  auto with = [&](int a, int b, int c, int d, size_t data) {
    write_raw(path,
              fmt::format(R"({{"a":{{"dtype":"F32","shape":[{}],"data_offsets":[{},{}]}},)"
                          R"("b":{{"dtype":"BOOL","shape":[{}],"data_offsets":[{},{}]}}}})",
                          (b - a) / 4, a, b, d - c, c, d),
              data);
    return refusal(path);
  };
  CHECK(with(0, 8, 8, 12, 12) == "");
  CHECK(with(4, 12, 0, 4, 12) == "");
  CHECK(contains(with(0, 8, 4, 12, 12), "tensor 'b': overlaps another"));
  CHECK(contains(with(0, 8, 0, 8, 8), "overlaps another"));
  CHECK(contains(with(0, 8, 9, 12, 12), "tensor 'b': leaves a gap before it at byte 8"));
  CHECK(contains(with(4, 8, 8, 12, 12), "tensor 'a': leaves a gap before it at byte 0"));
  CHECK(contains(with(0, 8, 8, 12, 11), "run past the 11 bytes of data"));
  CHECK(contains(with(0, 8, 8, 12, 13), "1 bytes of data belong to no tensor"));
  CHECK(with(0, 0, 0, 4, 4) == "");  // an empty tensor takes no place
  // Every truncation of a good file is refused.
  const std::vector<NamedTensor> tensors = {{"w", Tensor::from<float>({2}, {1, 2})}};
  write_safetensors(path, tensors);
  const std::string bytes = read_bytes(path);
  for (size_t n = 0; n < bytes.size(); ++n) {
    std::ofstream(path, std::ios::binary) << bytes.substr(0, n);
    CAPTURE(n);
    CHECK(refusal(path) != "");
  }
}

TEST_CASE("safetensors: a bool byte that is neither 0 nor 1 is refused") {
  Folder folder;
  const std::vector<NamedTensor> tensors = {{"m", Tensor::from<bool>({2}, {true, false})}};
  write_safetensors(folder.file(), tensors);
  std::string bytes = read_bytes(folder.file());
  bytes.back() = 2;
  std::ofstream(folder.file(), std::ios::binary) << bytes;
  CHECK_THROWS_WITH_AS(load_safetensors(folder.file(), "m"),
                       doctest::Contains("element 1 of a bool"), Error);
}

TEST_CASE("safetensors: what cannot be written is refused, and nothing is left") {
  Folder folder;
  const Tensor one = Tensor::scalar<float>(1);
  auto write = [&](std::vector<NamedTensor> tensors, const SafetensorsMetadata& metadata = {}) {
    write_safetensors(folder.file(), tensors, metadata);
  };
  CHECK_THROWS_WITH_AS(write({{"a", one}, {"a", one}}), doctest::Contains("'a' is given twice"),
                       Error);
  CHECK_THROWS_AS(write({{"", one}}), Error);
  CHECK_THROWS_AS(write({{"__metadata__", one}}), Error);
  CHECK_THROWS_AS(write({{"\xff", one}}), Error);
  CHECK_THROWS_AS(write({{"a", one}}, {{"k", "\xff"}}), Error);
  CHECK(fs::is_empty(folder.path));
  CHECK_THROWS_WITH_AS(write_safetensors(folder.path / "no/such/x", {}),
                       doctest::Contains("cannot create"), Error);
  // Over a folder: the rename fails after all has been written.
  fs::create_directory(folder.path / "d");
  CHECK_THROWS_WITH_AS(write_safetensors(folder.path / "d", {}), doctest::Contains("cannot rename"),
                       Error);
  CHECK(std::distance(fs::directory_iterator(folder.path), fs::directory_iterator()) == 1);
}

TEST_CASE("CK-02: no room for the new file leaves the old one whole") {
  Folder folder;
  const std::vector<NamedTensor> old = {{"w", Tensor::from<float>({2}, {1, 2})}};
  const std::vector<NamedTensor> large = {{"w", Tensor({DType::F32, {1 << 16}})}};
  write_safetensors(folder.file(), old);
  // In a child, whose files may not grow beyond 4 KiB.
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{4096, 4096};
    setrlimit(RLIMIT_FSIZE, &limit);
    int status = 1;
    try {
      write_safetensors(folder.file(), large);
    } catch (const Error&) {
      status = 0;
    }
    _exit(status);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(read_safetensors(folder.file())[0].second.same_bits(old[0].second));
  CHECK(std::distance(fs::directory_iterator(folder.path), fs::directory_iterator()) == 1);
  write_safetensors(folder.file(), large);
  CHECK(read_safetensors(folder.file())[0].second.same_bits(large[0].second));
}
