#!/bin/sh
# Tests of tally; exits 1 when one fails.
cd "$(dirname "$0")" || exit 2
. ./lib/money.sh

failed=0
check() { # name, want, got
	if [ "$2" = "$3" ]; then
		echo "ok   $1"
	else
		echo "FAIL $1: want $2, got $3"
		failed=$((failed + 1))
	fi
}

check "total of nothing" 0 "$(total </dev/null)"
check "total skips notes" 300 "$(printf '# note\n100 a\n200 b\n' | total)"
check "format 1299" 12.99 "$(format_cents 1299)"
check "format 3805" 38.05 "$(format_cents 3805)"
check "format 7" 0.07 "$(format_cents 7)"
check "tally of June" 38.05 "$(sh ./tally data/june.txt)"

if [ "$failed" -gt 0 ]; then
	echo "$failed failed"
	exit 1
fi
echo "all passed"
