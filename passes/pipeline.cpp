#include <sinter/passes/pass.h>

#include <algorithm>

namespace sinter {

namespace {

const PassInfo& known_pass(std::string_view name) {
  const PassInfo* pass = find_pass(name);
  if (pass == nullptr) throw Error(fmt::format("there is no pass '{}'", name));
  return *pass;
}

std::string_view trimmed(std::string_view s) {
  while (!s.empty() && (s.front() == ' ' || s.front() == '\n')) s.remove_prefix(1);
  while (!s.empty() && (s.back() == ' ' || s.back() == '\n')) s.remove_suffix(1);
  return s;
}

// Whether the registry's text "of=VALUE wrt=VALUE,…" names this key; `off` is what --disable sets.
bool takes_option(const PassInfo& pass, std::string_view key) {
  if (key == "off") return pass.disabling == PassInfo::RunsOff;
  std::string text = fmt::format(" {}", pass.options);
  return text.find(fmt::format(" {}=", key)) != std::string::npos;
}

// `of=l wrt=w,x`
PassOptions parse_options(const PassInfo& pass, std::string_view text) {
  PassOptions options;
  text = trimmed(text);
  while (!text.empty()) {
    size_t end = std::min(text.find(' '), text.size());
    std::string_view item = text.substr(0, end);
    text = trimmed(text.substr(end));
    size_t equals = item.find('=');
    if (equals == 0 || equals == std::string_view::npos)
      throw Error(fmt::format("pass {}: expected KEY=VALUE, got '{}'", pass.name, item));
    std::string_view key = item.substr(0, equals);
    if (!takes_option(pass, key))
      throw Error(fmt::format("pass {} has no option '{}'", pass.name, key));
    if (!options.emplace(key, item.substr(equals + 1)).second)
      throw Error(fmt::format("pass {}: option '{}' is given twice", pass.name, key));
  }
  return options;
}

}  // namespace

std::vector<PipelineStep> parse_pipeline(std::string_view text) {
  std::vector<PipelineStep> steps;
  text = trimmed(text);
  while (!text.empty()) {
    // A comma inside braces belongs to an option's value.
    size_t end = text.find_first_of(",{");
    std::string_view name = trimmed(text.substr(0, end)), options;
    if (end != std::string_view::npos && text[end] == '{') {
      size_t close = text.find('}', end);
      if (close == std::string_view::npos)
        throw Error(fmt::format("the options of pass {} are not closed by '}}'", name));
      options = text.substr(end + 1, close - end - 1);
      end = close + 1;
      std::string_view rest = trimmed(text.substr(end));
      if (!rest.empty() && rest[0] != ',')
        throw Error(fmt::format("expected ',' after pass {}, got '{}'", name, rest));
      end = rest.empty() ? std::string_view::npos : text.find(',', end);
    }
    const PassInfo& pass = known_pass(name);
    steps.push_back({&pass, parse_options(pass, options)});
    if (end == std::string_view::npos) break;
    text = trimmed(text.substr(end + 1));
    if (text.empty()) throw Error("the list of passes ends in ','");
  }
  return steps;
}

std::vector<PipelineStep> default_pipeline() {
  std::vector<PipelineStep> steps;
  for (std::string_view name : {
           "verify",
           "inline",
           "canonicalize",
           "fuse-attention",
           "autocast",
           "autodiff",
           "accumulate",
           "optimizer",
           "round-operands",
           "canonicalize",
           "cse",
           "dce",
           // Behind cse and dce, which leave the casts that are needed; before recompute, which
           // would count them as values to keep.
           "weight-copies",
           "recompute",
           "native",
           "expand",
           // Forward and backward expansions share subexpressions, which only show after expand:
           // hence cse once more, behind recompute. It cannot undo recompute: it merges ops of one
           // segment alone, the copies are in NAME.recompute and not in NAME, and what expand and
           // canonicalize make of an op stays in the op's segment.
           "canonicalize",
           "cse",
           "dce",
           // What it pads, fuse makes part of the kernels around.
           "align",
           // Before fuse, which leaves the views that kernel templates read or write alone.
           "layout",
           "fuse",
           // Behind fuse, whose equal bodies are one graph.
           "bundle",
           "order",
           "plan-memory",
       })
    steps.push_back({&known_pass(name), {}});
  return steps;
}

std::vector<PipelineStep> rest_of_pipeline(const std::vector<PipelineStep>& done) {
  std::vector<PipelineStep> all = default_pipeline();
  for (size_t i = done.size(); i-- > 0;) {
    // A pass that stands several times counts as its occurrence that fits the passes named: the
    // n-th cse of `done` is the n-th of the pipeline.
    size_t times = 0;
    for (size_t k = 0; k <= i; ++k) times += done[k].pass == done[i].pass;
    size_t last = all.size();
    for (size_t k = 0; k < all.size() && times > 0; ++k)
      if (all[k].pass == done[i].pass) {
        last = k;
        --times;
      }
    if (last == all.size()) continue;
    all.erase(all.begin(), all.begin() + static_cast<int64_t>(last) + 1);
    return all;
  }
  return all;
}

}  // namespace sinter
