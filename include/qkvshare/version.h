// The version of QKVShare.
#pragma once

namespace qkvshare {

inline constexpr const char* kVersionText = "0.1.0";

}  // namespace qkvshare
