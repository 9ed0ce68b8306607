"""Tests, one folder per kind; docs/design/testing.md says what each kind proves."""
