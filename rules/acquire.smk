# Acquire data from the source that the dataset names.
#
# REQUIRED INPUTS: none, or the inputs that the source names: files, a folder, lists of accessions, a
#   lock file, or NCBI over the network.
# OUTPUTS in results/{experiment}/data/{dataset}/:
#   sequences/{class}.fasta, lock.tsv    genomes: accession, length and SHA-256 of each record
#   source/                              other kinds, with lock.tsv: path, bytes and SHA-256 of files
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


use rule genomes as source with:
    output:
        source=directory(f"{DATA}/source"),
    log:
        "results/{experiment}/logs/{dataset}/source.log",
    localrule: True
    params:
        job=job(
            "source",
            lambda wildcards: {
                "kind": kind_with(wildcards, "source"),
                "acquisition": settings_result(wildcards, "acquisition"),
            },
        ),
    message:
        "Acquire {wildcards.dataset}"
