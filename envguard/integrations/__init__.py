"""Stamps from inside other people's trainers; each module needs the trainer that it is for, and nothing else does."""
