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

const rms_norm_params& current(const rms_norm_params& given, rms_norm_params& room) noexcept {
  const std::uint32_t version = given.version;
  if (version < 1 || version >= RMS_NORM_PARAMS_VERSION) return given;
  // Only what the caller's struct has may be read: it ends before the first newer field, perhaps with padding.
  std::size_t bytes = sizeof given;
#define FIRST_NEWER(name, neutral, since) \
  if ((since) > version) bytes = std::min(bytes, offsetof(rms_norm_params, name));
  RMS_NORM_FLOAT_ATTRIBUTES(FIRST_NEWER)
#undef FIRST_NEWER
  std::memcpy(&room, &given, bytes);
#define SET_NEWER(name, neutral, since) \
  if ((since) > version) room.name = neutral;
  RMS_NORM_FLOAT_ATTRIBUTES(SET_NEWER)
#undef SET_NEWER
  room.version = RMS_NORM_PARAMS_VERSION;
  return room;
}

}  // namespace rmsnorm_deploy
