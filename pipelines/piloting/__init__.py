"""What a pilot does: plan two narrow midtrainings, measure them, propose a cycle."""
