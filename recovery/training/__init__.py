"""Training: the one loop, its optimizer update, its data, its alarms and its preflight."""
