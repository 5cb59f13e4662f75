#include <sinter/ir/numeric.h>
#include <sinter/ir/op_def.h>
#include <sinter/ir/text.h>
#include <sinter/ir/text/lexer.h>
#include <sinter/ir/verifier.h>

#include <algorithm>
#include <charconv>

namespace sinter {
namespace {

using text::Token;

class Parser {
 public:
  Parser(std::string_view source, std::string_view file_name)
      : file_(std::make_shared<const std::string>(file_name)),
        tokens_(text::tokenize(source, file_)) {}

  std::unique_ptr<Module> module() {
    module_ = std::make_unique<Module>();
    if (is_word("module")) {
      next();
      module_->target = target(attr_block());
    }
    while (is_word("state")) {
      next();
      std::string name = word("a state's name");
      punct(":");
      State state{std::move(name), type()};
      if (accept("=")) {
        if (!is_word("cast")) fail(peek(), fmt::format("expected 'cast', got {}", shown(peek())));
        next();
        state.cast_of = word("a state's name");
      }
      module_->states.push_back(std::move(state));
    }
    // Graphs may call later ones: bodies are read in the order in which callees come first.
    scan_graphs();
    for (size_t i = 0; i < pending_.size(); ++i) parse_pending(i);
    at_ = tokens_.size() - 1;
    if (pending_.empty()) fail(peek(), "expected a graph");
    verify(*module_);
    return std::move(module_);
  }

 private:
  struct LocatedValue {
    AttrValue value;
    Token at;
  };
  using LocatedAttrs = std::vector<std::pair<std::string, LocatedValue>>;
  struct Pending {
    size_t begin;
    std::string name;
    enum { Waiting, Active, Done } state = Waiting;
  };

  [[noreturn]] void fail(const Token& at, std::string message) const {
    throw Error(Diagnostic{{file_, at.line, at.column}, std::move(message)});
  }
  const Token& peek() const { return tokens_[at_]; }
  Token next() { return tokens_[peek().kind == Token::End ? at_ : at_++]; }
  bool is_punct(std::string_view p) const {
    return peek().kind == Token::Punct && peek().text == p;
  }
  bool is_word(std::string_view w) const { return peek().kind == Token::Word && peek().text == w; }
  bool accept(std::string_view p) {
    if (!is_punct(p)) return false;
    next();
    return true;
  }
  std::string shown(const Token& t) const {
    return t.kind == Token::End ? "the end of the file" : fmt::format("'{}'", t.text);
  }
  void punct(std::string_view p) {
    if (!accept(p)) fail(peek(), fmt::format("expected '{}', got {}", p, shown(peek())));
  }
  std::string word(std::string_view what) {
    if (peek().kind != Token::Word)
      fail(peek(), fmt::format("expected {}, got {}", what, shown(peek())));
    return next().text;
  }

  // f32[2,3]
  TensorType type() {
    Token at = peek();
    std::string text = word("a type");
    punct("[");
    text += "[";
    while (!is_punct("]")) {
      if (text.back() != '[') {
        punct(",");
        text += ",";
      }
      if (peek().kind != Token::Number)
        fail(peek(), fmt::format("expected an extent, got {}", shown(peek())));
      text += next().text;
    }
    punct("]");
    auto parsed = parse_tensor_type(text + "]");
    if (!parsed) fail(at, fmt::format("bad type {}]", text));
    return *parsed;
  }

  AttrValue number(const Token& t) const {
    int64_t i = 0;
    auto [end, error] = std::from_chars(t.text.data(), t.text.data() + t.text.size(), i);
    if (error == std::errc() && end == t.text.data() + t.text.size()) return i;
    auto d = parse_f64(t.text);
    if (!d) fail(t, fmt::format("bad number '{}'", t.text));
    return *d;
  }

  LocatedValue attr_value() {
    Token t = next();
    if (t.kind == Token::String) return {t.text, t};
    if (t.kind == Token::Number) return {number(t), t};
    if (t.kind == Token::Word) {
      if (t.text == "true" || t.text == "false") return {t.text == "true", t};
      if (auto d = parse_f64(t.text)) return {*d, t};
      if (parse_dtype(t.text) && is_punct("[")) {
        --at_;
        return {type(), t};
      }
    }
    if (t.kind == Token::Punct && t.text == "[") {
      std::vector<int64_t> integers;
      std::vector<std::string> strings;
      while (!accept("]")) {
        if (!integers.empty() || !strings.empty()) punct(",");
        Token item = next();
        if (item.kind == Token::String) {
          strings.push_back(item.text);
          continue;
        }
        AttrValue v = item.kind == Token::Number ? number(item) : AttrValue(false);
        auto* i = std::get_if<int64_t>(&v);
        if (!i) fail(item, fmt::format("expected an integer or a string, got {}", shown(item)));
        integers.push_back(*i);
      }
      if (!strings.empty() && !integers.empty()) fail(t, "a list mixes integers and strings");
      if (!strings.empty()) return {std::move(strings), t};
      return {std::move(integers), t};
    }
    fail(t, fmt::format("expected an attribute's value, got {}", shown(t)));
  }

  // The named target with the values that are given.
  Target target(const LocatedAttrs& attrs) {
    Target out;
    auto bad = [&](const std::pair<std::string, LocatedValue>& attr) {
      fail(attr.second.at, fmt::format("bad module attribute {}", attr.first));
    };
    for (const auto& attr : attrs) {
      if (attr.first != "target") continue;
      auto* arch = std::get_if<std::string>(&attr.second.value);
      auto named = arch != nullptr ? Target::named(*arch) : std::nullopt;
      if (!named) bad(attr);
      out = *named;
    }
    for (const auto& attr : attrs) {
      if (attr.first == "target") continue;
      int64_t* field = out.find(attr.first);
      auto* number = std::get_if<int64_t>(&attr.second.value);
      if (field == nullptr || number == nullptr) bad(attr);
      *field = *number;
      if (!out.usable()) bad(attr);
    }
    return out;
  }

  // {a = 1, b = "x"}
  LocatedAttrs attr_block() {
    std::vector<std::pair<std::string, LocatedValue>> out;
    punct("{");
    while (!accept("}")) {
      if (!out.empty()) punct(",");
      Token at = peek();
      std::string name = word("an attribute's name");
      for (const auto& [other, value] : out)
        if (other == name) fail(at, fmt::format("attribute {} is given twice", name));
      punct("=");
      out.emplace_back(std::move(name), attr_value());
    }
    return out;
  }

  // "f.cpp":12
  SourceLocation place() {
    if (peek().kind != Token::String) fail(peek(), "expected a file name");
    std::string name = next().text;
    auto& shared = files_[name];
    if (!shared) shared = std::make_shared<const std::string>(name);
    SourceLocation loc{shared, 0, 0};
    punct(":");
    loc.line = integer();
    if (accept(":")) loc.column = integer();
    return loc;
  }
  // loc("f.cpp":12), or with several places; empty when the keyword does not follow.
  std::vector<SourceLocation> places(std::string_view keyword) {
    std::vector<SourceLocation> out;
    if (!is_word(keyword)) return out;
    next();
    punct("(");
    do out.push_back(place());
    while (accept(","));
    punct(")");
    return out;
  }
  int integer() {
    Token t = next();
    AttrValue v = t.kind == Token::Number ? number(t) : AttrValue(false);
    auto* i = std::get_if<int64_t>(&v);
    if (!i) fail(t, fmt::format("expected an integer, got {}", shown(t)));
    return static_cast<int>(*i);
  }

  void scan_graphs() {
    while (peek().kind != Token::End) {
      if (!is_word("graph")) fail(peek(), fmt::format("expected a graph, got {}", shown(peek())));
      size_t begin = at_;
      next();
      if (peek().kind != Token::GraphName) fail(peek(), "expected the graph's name, as in @main");
      Token name = next();
      if (module_->find(name.text))
        fail(name, fmt::format("graph @{} is defined twice", name.text));
      module_->add_graph(name.text);
      pending_.push_back({begin, name.text});
      int depth = 0;
      bool opened = false;
      while (!(opened && depth == 0)) {
        if (peek().kind == Token::End)
          fail(peek(), fmt::format("graph @{} is not closed", name.text));
        Token t = next();
        if (t.kind != Token::Punct) continue;
        if (t.text == "{") ++depth;
        if (t.text == "}") --depth;
        // The body is the block that no `attributes` precedes.
        if (t.text == "{" && depth == 1 && !after_attributes(at_ - 1)) opened = true;
        if (depth < 0) fail(t, "unexpected '}'");
      }
    }
  }
  bool after_attributes(size_t brace) const {
    return brace > 0 && tokens_[brace - 1].kind == Token::Word &&
           tokens_[brace - 1].text == "attributes";
  }

  void parse_pending(size_t i) {
    if (pending_[i].state != Pending::Waiting) return;
    pending_[i].state = Pending::Active;
    size_t saved = at_;
    at_ = pending_[i].begin;
    graph();
    at_ = saved;
    pending_[i].state = Pending::Done;
  }
  void need_graph(const Token& name) {
    for (size_t i = 0; i < pending_.size(); ++i) {
      if (pending_[i].name != name.text) continue;
      if (pending_[i].state == Pending::Active)
        fail(name, fmt::format("graph @{} calls itself", name.text));
      parse_pending(i);
      return;
    }
    fail(name, fmt::format("there is no graph @{}", name.text));
  }

  void graph() {
    next();
    Graph& g = *module_->find(next().text);
    std::unordered_map<std::string, Value> values;
    punct("(");
    while (!accept(")")) {
      if (!values.empty()) punct(",");
      Token name = next();
      if (name.kind != Token::ValueName)
        fail(name, fmt::format("expected an input, got {}", shown(name)));
      punct(":");
      if (values.contains(name.text)) fail(name, fmt::format("%{} is defined twice", name.text));
      values[name.text] = g.add_input(name.text, type());
    }
    punct("->");
    Token types_at = peek();
    std::vector<TensorType> result_types;
    if (accept("(")) {
      while (!accept(")")) {
        if (!result_types.empty()) punct(",");
        result_types.push_back(type());
      }
    } else {
      result_types.push_back(type());
    }
    if (is_word("attributes")) {
      next();
      for (auto& [name, value] : attr_block()) g.attributes[name] = std::move(value.value);
    }
    punct("{");
    while (!is_word("return")) op(g, values);
    next();
    while (!is_punct("}")) {
      if (!g.outputs().empty()) punct(",");
      std::string name;
      Token at = peek();
      // An output named after an unnamed value of the text that was read has a number for a name.
      if (peek().kind == Token::Word || peek().kind == Token::Number) {
        name = next().text;
        punct("=");
      }
      Value v = value(values);
      if (name.empty()) name = tokens_[at_ - 1].text;
      for (const GraphOutput& o : g.outputs())
        if (o.name == name) fail(at, fmt::format("output {} is named twice", name));
      g.add_output(name, v);
    }
    punct("}");
    if (g.outputs().size() != result_types.size())
      fail(types_at, fmt::format("graph @{} declares {} results and returns {}", g.name(),
                                 result_types.size(), g.outputs().size()));
    for (size_t i = 0; i < result_types.size(); ++i)
      if (g.outputs()[i].value.type() != result_types[i])
        fail(types_at, fmt::format("graph @{} declares result {} as {} and returns {}", g.name(), i,
                                   result_types[i].str(), g.outputs()[i].value.type().str()));
  }

  Value value(const std::unordered_map<std::string, Value>& values) {
    Token t = next();
    if (t.kind != Token::ValueName) fail(t, fmt::format("expected a value, got {}", shown(t)));
    auto it = values.find(t.text);
    if (it == values.end()) fail(t, fmt::format("%{} is not defined", t.text));
    return it->second;
  }

  void op(Graph& g, std::unordered_map<std::string, Value>& values) {
    Token start = peek();
    std::vector<Token> results;
    do {
      Token t = next();
      if (t.kind != Token::ValueName)
        fail(t, fmt::format("expected an op or `return`, got {}", shown(t)));
      results.push_back(t);
    } while (accept(","));
    punct("=");
    Token name_at = peek();
    std::string name = word("an op");
    const OpDef* def = OpRegistry::get().find(name);
    if (!def) fail(name_at, fmt::format("there is no op '{}'", name));

    OpInit init;
    bool parenthesised = false;
    if (peek().kind == Token::GraphName) {
      Token callee = next();
      if (!def->has_callee) fail(callee, fmt::format("{} calls no graph", name));
      need_graph(callee);
      init.callee = callee.text;
      punct("(");
      parenthesised = true;
    }
    const auto& specs = def->operands;
    while (peek().kind == Token::ValueName || peek().kind == Token::Word) {
      if (peek().kind == Token::Word) {
        Token label = next();
        size_t slot = 0;
        while (slot < specs.size() &&
               !(specs[slot].kind == OperandSpec::Optional && specs[slot].name == label.text))
          ++slot;
        if (slot == specs.size())
          fail(label, fmt::format("{} has no optional operand '{}'", name, label.text));
        punct("=");
        if (slot >= init.operands.size()) init.operands.resize(slot + 1);
        init.operands[slot] = value(values);
      } else {
        init.operands.push_back(value(values));
      }
      if (!accept(",")) break;
    }
    if (parenthesised) punct(")");

    std::shared_ptr<void> attrs = def->schema.make();
    if (is_punct("{")) {
      for (auto& [key, located] : attr_block()) {
        if (key == "segment" || key == "native") {
          auto* s = std::get_if<std::string>(&located.value);
          if (!s) fail(located.at, fmt::format("{} takes a string", key));
          (key == "segment" ? init.segment : init.native) = *s;
          continue;
        }
        size_t k = 0;
        const auto& items = def->schema.items;
        while (k < items.size() && (items[k].name != key || items[k].is_result_type)) ++k;
        if (k == items.size()) fail(located.at, fmt::format("{} has no attribute '{}'", name, key));
        if (!items[k].set(attrs.get(), k, located.value))
          fail(located.at,
               fmt::format("{}: attribute {} cannot be {}", name, key, to_string(located.value)));
        const auto& graphs = def->callee_attrs;
        if (std::find(graphs.begin(), graphs.end(), key) != graphs.end()) need_graph(located.at);
      }
    }
    punct(":");
    Token types_at = peek();
    std::vector<TensorType> types;
    do types.push_back(type());
    while (accept(","));
    for (size_t k = 0; k < def->schema.items.size(); ++k)
      if (def->schema.items[k].is_result_type) def->schema.items[k].set(attrs.get(), k, types[0]);
    init.attrs = attrs;
    std::vector<SourceLocation> loc_at = places("loc"), from = places("from");
    std::vector<SourceLocation> with = places("with");
    init.loc = loc_at.empty() ? SourceLocation{file_, name_at.line, name_at.column} : loc_at[0];
    if (!from.empty()) init.from = from[0];
    // An explicit location may be of another file; mistakes in this text are reported here.
    Op* made = nullptr;
    try {
      made = &g.create(*def, std::move(init));
    } catch (const Error& e) {
      throw Error(Diagnostic{{file_, name_at.line, name_at.column}, e.diagnostic().message});
    }
    made->set_with(std::move(with));
    if (made->num_results() != results.size())
      fail(start, fmt::format("{} has {} result{}, {} given", name, made->num_results(),
                              made->num_results() == 1 ? "" : "s", results.size()));
    if (types.size() != results.size())
      fail(types_at, fmt::format("{} results and {} types", results.size(), types.size()));
    for (size_t i = 0; i < results.size(); ++i) {
      Value v = made->result(i);
      if (v.type() != types[i])
        fail(types_at, fmt::format("{}: result {} is declared {}, its operands give {}", name, i,
                                   types[i].str(), v.type().str()));
      if (!values.emplace(results[i].text, v).second)
        fail(results[i], fmt::format("%{} is defined twice", results[i].text));
      char c = results[i].text[0];
      if (c < '0' || c > '9') v.set_name(results[i].text);
    }
  }

  std::shared_ptr<const std::string> file_;
  std::vector<Token> tokens_;
  size_t at_ = 0;
  std::unique_ptr<Module> module_;
  std::vector<Pending> pending_;
  std::unordered_map<std::string, std::shared_ptr<const std::string>> files_;
};

}  // namespace

std::unique_ptr<Module> parse_module(std::string_view text, std::string_view file_name) {
  return Parser(text, file_name).module();
}

}  // namespace sinter
