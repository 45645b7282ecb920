"""Facts become decisions here. Pure: no I/O, no clock, no framework; the shells live beside the pure modules and import them."""
