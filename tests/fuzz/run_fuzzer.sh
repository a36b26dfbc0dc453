#!/bin/sh
# run_fuzzer.sh FUZZER SECONDS DIRECTORY: runs a libFuzzer program over scenarios/, from the root of
# the sources, and says what it did. An input that breaks it stays in DIRECTORY, with the log.
set -eu
fuzzer=$1
seconds=$2
directory=$3

rm -rf "$directory"
mkdir -p "$directory/corpus"
log="$directory/log.txt"
status=0
# The limits are for what goes wrong: an input takes milliseconds.
"$fuzzer" -seed=1 -max_total_time="$seconds" -timeout=60 -rss_limit_mb=2048 -malloc_limit_mb=512 \
  -max_len=8192 -print_final_stats=1 -artifact_prefix="$directory/" \
  "$directory/corpus" scenarios >"$log" 2>&1 || status=$?

of_stats() { sed -n "s/^stat::$1: *//p" "$log"; }
coverage=$(sed -n 's/.* cov: \([0-9]*\) ft: \([0-9]*\).*/\1 edges, \2 features/p' "$log" | tail -n 1)
echo "$(of_stats number_of_executed_units) inputs, $(of_stats new_units_added) of them new;" \
  "covered $coverage; peak $(of_stats peak_rss_mb) MB"
if [ "$status" -ne 0 ]; then
  grep -v '^#[0-9]' "$log" | tail -n 60
  echo "an input broke it, kept in $directory" >&2
fi
exit "$status"
