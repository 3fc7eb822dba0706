"""The dashboard: the tracker's rows as pages and figures, and a person's reviews of cycles."""
