"""The Alembic environment and its versions; a package only so that the wheel carries it."""
