"""`make headofline`: do ordinary gangs wait longer while others hang, are slow, are refused or flood?

`python -m benchmarks.headofline --help`; docs/measurements-appendix.md says what is measured.
"""
