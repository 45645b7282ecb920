"""The API server as every process of Sickbay that needs one speaks to it: requests, credentials, the Lease of an election."""
