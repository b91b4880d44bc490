"""Commands: each parses, calls one function, renders and exits."""
