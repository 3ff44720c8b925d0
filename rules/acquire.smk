# Acquire data from the source that the dataset names.
#
# REQUIRED INPUTS: none, or those that the source names: files, a folder, lists of accessions, a
#   lock file, or NCBI over the network.
# OUTPUTS for genomes:
#   results/{experiment}/data/{dataset}/sequences/{class}.fasta
#   results/{experiment}/data/{dataset}/lock.tsv    class, accession, length and SHA-256 of each
# OUTPUTS for other kinds with a source:
#   results/{experiment}/data/{dataset}/source/     with lock.tsv: file, bytes and SHA-256
#
# The lock file, committed and named in the config as `source.lock`, makes the same config give the
# same bytes a year later. A download is kept in `.partial` until it is complete. Snakemake does not
# know this folder, and so does not remove it when the job fails.


rule genomes:
    input:
        files=source_files,
    output:
        sequences=directory(f"{DATA}/sequences"),
        lock=f"{DATA}/lock.tsv",
    log:
        "results/{experiment}/logs/{dataset}/genomes.log",
    priority: FIRST
    localrule: True
    conda:
        "../envs/prepare.yaml"
    params:
        code=lambda wildcards: kind_code("genomes", ACQUIRE),
        files=files,
        job=job(
            "genomes",
            lambda wildcards: settings_of(genomes(wildcards), "source", "classes")
            | {"partial": f"{DATA}/.partial".format(**wildcards)},
        ),
    message:
        "Acquire the genomes of {wildcards.dataset}"
    shell:
        STEP


rule source:
    input:
        files=source_files,
    output:
        source=directory(f"{DATA}/source"),
    log:
        "results/{experiment}/logs/{dataset}/source.log",
    priority: FIRST
    localrule: True
    conda:
        "../envs/prepare.yaml"
    params:
        code=lambda wildcards: kind_code(kind_with(wildcards, "source")),
        files=files,
        job=job(
            "source",
            lambda wildcards: {
                "kind": dataset(wildcards)["kind"],
                "acquisition": settings_result(wildcards, "acquisition"),
            },
        ),
    message:
        "Acquire {wildcards.dataset}"
    shell:
        STEP
