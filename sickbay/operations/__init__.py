"""What every long-running process has beside its work: structured logs, metrics, health, a clock that only goes on."""
