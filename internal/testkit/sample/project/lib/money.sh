# Amounts are whole numbers of cents.

# total adds up the amounts of a list on standard input.
total() {
	sum=0
	while read -r cents _; do
		case $cents in
		'' | '#'*) continue ;;
		esac
		sum=$((sum + cents))
	done
	echo "$sum"
}

# format_cents prints an amount with a point: 1299 is 12.99.
format_cents() {
	printf '%d.%d\n' $(($1 / 100)) $(($1 % 100))
}
