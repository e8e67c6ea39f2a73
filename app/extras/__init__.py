"""Parts of specchat that it runs without."""
