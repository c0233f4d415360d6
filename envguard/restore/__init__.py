"""The restore: plan → apply → verify → roll back."""
