"""One suite per interface; every implementation, real or fake, passes the same tests."""
