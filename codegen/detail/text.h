#pragma once
// Pieces of text that the printers of kernels and loops and the interpreter's messages share.

#include <sinter/codegen/loops.h>

#include <string>

namespace sinter::detail {

using AtomName = std::function<std::string(const IndexAtom& leaf)>;

// Loop i3 as "i3", gathered variable v7 as "v7".
std::string loop_atom_name(const IndexAtom& leaf);
// "0.5", "nan", "-3", "true".
std::string cell_text(DType type, Cell value);
// "0 <= i1 < 5 and v2 < 7": bounds that the ranges imply are left out; "true", "false".
std::string guard_text(const Guard& guard, const AtomName& name);
std::string_view random_name(RandomKind kind);
// One statement without its body: "let v3 = add v1, v2 : f32", "for lane i1 in 0..256".
std::string statement_text(const LoopProgram& program, const Stmt& stmt);

}  // namespace sinter::detail
