"""Fair shares between tenants: `queue` orders work by what each was served, `semaphore` shares places. Pure."""
