"""Real evaluation sets that ordinary packages ship: fetched when asked for, never kept here."""
