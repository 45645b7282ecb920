"""Events become SQL rows here. Only this package and migrations speak SQL; nothing here decides."""
