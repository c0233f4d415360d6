"""What envguard itself writes: atomic files, the state folder, the append-only journal."""
