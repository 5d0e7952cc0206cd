"""The paper's experiments: one command each, tables and figures from what they leave behind."""
