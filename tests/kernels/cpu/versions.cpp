// Built against a copy of the contract that has one attribute more, as test_versions.py makes it. It has to be called
// from the version before with the struct of that version, which ends where its last field ends.
#include "contract/versions.h"

#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <memory>

#include "contract/check.h"
#include "contract/outputs.h"

using namespace rmsnorm_deploy;  // NOLINT: a test's own file

namespace {

int failures = 0;

void expect(bool holds, const char* what) {
  if (holds) return;
  std::printf("%s\n", what);
  ++failures;
}

rms_norm_params valid(std::uint32_t version) {
  static float memory[3] = {};
  rms_norm_params p;
  std::memset(&p, 0xff, sizeof p);
  p.version = version;
  p.x_type = p.scale_type = p.round_type = p.stash_type = RMS_NORM_FLOAT32;
  p.rank = p.axis_count = 1;
  p.axis_begin = 0;
  p.x = memory;
  p.scale = memory + 1;
  p.y = memory + 2;
  p.residual = p.bias = p.sum = nullptr;
  p.shape[0] = p.partial_size = 1;
  p.scale_strides[0] = 0;
  set_neutral(p, 1);
#define SET(name, neutral, since) p.name = 0.5f;
  RMS_NORM_FLOAT_ATTRIBUTES(SET)
#undef SET
  return p;
}

int code_of(const rms_norm_params& p) {
  Sizes sizes;
  return check(p, sizes);
}

}  // namespace

// A struct of an older version, `bytes` long, is read as one of this version.
void older_is_read(std::uint32_t version, std::size_t bytes) {
  const rms_norm_params older = valid(version);
  const std::unique_ptr<unsigned char[]> memory(new unsigned char[bytes]);  // a sanitizer sees reads behind it
  std::memcpy(memory.get(), &older, bytes);
  rms_norm_params room;
  std::memset(&room, 0xff, sizeof room);
  const rms_norm_params& read = current(*reinterpret_cast<const rms_norm_params*>(memory.get()), room);
  expect(&read == &room, "a struct of an older version is copied");
  expect(read.version == RMS_NORM_PARAMS_VERSION, "the copy has this library's version");
  expect(read.added == 2.5f, "the newer field has its neutral value");
  expect(!has_outputs(read), "so have those of version 2");
  rms_norm_params same = read;
  same.version = older.version;
  expect(!std::memcmp(&same, &older, bytes), "all older fields are as they were given");
  expect(code_of(read) == RMS_NORM_OK, "the copy is accepted");
}

int main() {
  older_is_read(1, offsetof(rms_norm_params, y_type));
  older_is_read(RMS_NORM_PARAMS_VERSION - 1, offsetof(rms_norm_params, added));

  rms_norm_params room;
  rms_norm_params newest = valid(RMS_NORM_PARAMS_VERSION);
  newest.added = 3;
  expect(&current(newest, room) == &newest, "a struct of this version is not copied");
  expect(code_of(newest) == RMS_NORM_OK, "and accepted");
  newest.added = -1;
  expect(code_of(newest) == RMS_NORM_BAD_VALUE, "the new attribute is checked");
  expect(std::strstr(rmsnorm_deploy_error_text(RMS_NORM_BAD_VALUE), " added"), "and named");

  for (const std::uint32_t version : {0u, RMS_NORM_PARAMS_VERSION + 1u}) {
    const rms_norm_params unknown = valid(version);
    expect(code_of(current(unknown, room)) == RMS_NORM_BAD_VERSION, "an unknown version is refused");
  }
  return failures;
}
