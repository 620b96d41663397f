"""The findings of `check`, its rules, and how findings are fixed or waived."""
