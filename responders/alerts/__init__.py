"""Alerts: what stands by the decisions, told to Alertmanager, a webhook and a topic (docs/alerts.md)."""
