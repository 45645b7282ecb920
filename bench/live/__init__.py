"""What ``make bench-live`` measures: the path from Kafka through the fold and on, beside a plain loop and another framework."""
