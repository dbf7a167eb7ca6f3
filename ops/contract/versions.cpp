#include "versions.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace rmsnorm_deploy {

#define IS_KNOWN(name, neutral, since) \
  static_assert((since) <= RMS_NORM_PARAMS_VERSION, #name " is newer than RMS_NORM_PARAMS_VERSION; raise that");
RMS_NORM_FLOAT_ATTRIBUTES(IS_KNOWN)
#undef IS_KNOWN

void set_neutral(rms_norm_params& params, std::uint32_t version) noexcept {
  if (version < 2) {
    // The strides at the end of that version's fields are read only where `strided` says so.
    constexpr std::size_t kBegin = offsetof(rms_norm_params, y_type);
    std::memset(reinterpret_cast<unsigned char*>(&params) + kBegin, 0, offsetof(rms_norm_params, x_strides) - kBegin);
  }
#define SET_NEWER(name, neutral, since) \
  if ((since) > version) params.name = neutral;
  RMS_NORM_FLOAT_ATTRIBUTES(SET_NEWER)
#undef SET_NEWER
}

const rms_norm_params& current(const rms_norm_params& given, rms_norm_params& room) noexcept {
  const std::uint32_t version = given.version;
  if (version < 1 || version >= RMS_NORM_PARAMS_VERSION) return given;
  // Only what the caller's struct has may be read: it ends before the first newer field, perhaps with padding.
  std::size_t bytes = version < 2 ? offsetof(rms_norm_params, y_type) : sizeof given;
#define FIRST_NEWER(name, neutral, since) \
  if ((since) > version) bytes = std::min(bytes, offsetof(rms_norm_params, name));
  RMS_NORM_FLOAT_ATTRIBUTES(FIRST_NEWER)
#undef FIRST_NEWER
  std::memcpy(&room, &given, bytes);
  set_neutral(room, version);
  room.version = RMS_NORM_PARAMS_VERSION;
  return room;
}

}  // namespace rmsnorm_deploy
