# Runs nvcc as given, and keeps ptxas' report and the PTX beside the object file: for the tests that read them.
for argument; do
  [ "$before" = -o ] && object=$argument
  before=$argument
done
mkdir -p "$object.kept"
"$@" -Xptxas -v --keep --keep-dir "$object.kept" 2> "$object.report"
status=$?
# Silent about what was asked for only.
grep -v -e '^ptxas info' -e 'bytes stack frame' -e '^$' "$object.report" >&2
exit $status
