#pragma once
// Timed choices: which of several ways a device's library carries out a product. They change bits,
// so a run that shall repeat keeps them: the record is part of an executable and of a checkpoint.

#include <map>
#include <string>

namespace sinter {

struct TuningRecord {
  // The card and the library whose choices these are: "sm_90a cublaslt 130100".
  std::string made_with;
  // By product ("bf16[64x32 , 32x16] -> f32"), in the library's own encoding.
  std::map<std::string, std::string> choices;

  bool empty() const { return choices.empty(); }
  friend bool operator==(const TuningRecord&, const TuningRecord&) = default;
};

namespace detail {

// The record if it was made with this card and library; otherwise an empty one, with a warning
// where there were choices.
TuningRecord usable_record(const TuningRecord& record, const std::string& made_with);

}  // namespace detail

}  // namespace sinter
