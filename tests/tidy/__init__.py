"""The rules of the house as tests, over the tree as it is.

Each rule is a function from one parsed file to what is wrong in it (``tree.Rule``). One test runs
the rules over the tree; another shows each rule a file that breaks it, so that a rule that never
fires is noticed.
"""
