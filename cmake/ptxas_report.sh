#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs a compile and keeps what ptxas says about registers beside the object, as <object>.ptxas.
object=
previous=
for argument in "$@"; do
  [ "$previous" = -o ] && object=$argument
  previous=$argument
done
"$@" 2>"$object.ptxas"
status=$?
grep -v -e '^ptxas info' -e 'bytes stack frame' -e '^[[:space:]]*$' "$object.ptxas" >&2
exit $status
