"""Worker processes: started, given turns, held to deadlines, replaced when they die."""
