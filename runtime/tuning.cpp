#include <sinter/runtime/tuning.h>

#include <fmt/format.h>
#include <sinter/runtime/log.h>

namespace sinter::detail {

TuningRecord usable_record(const TuningRecord& record, const std::string& made_with) {
  if (record.made_with == made_with) return record;
  if (!record.empty())
    log_warning(
        fmt::format("the tuning record was made with {}, here is {}: its {} choices are ignored",
                    record.made_with, made_with, record.choices.size()));
  return {made_with, {}};
}

}  // namespace sinter::detail
