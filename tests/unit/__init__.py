"""One module at a time, without sockets; files are named after the module they test."""
