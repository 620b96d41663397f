"""Figures as tables for other programs: CSV and Parquet."""
