module controlplane

go 1.26.0
