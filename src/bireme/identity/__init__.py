"""Who is asking, where the kernel cannot say it: sessions of people who look at the pages."""
