"""A bridge for one run: `demo` and `bench` start a real ``postdate run`` with names and keys of its own."""
