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
        source_files,
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
        source=lambda wildcards: json.dumps(genomes(wildcards)["source"]),
        classes=lambda wildcards: genomes(wildcards)["classes"],
        partial=f"{DATA}/.partial",
    message:
        "Acquire the genomes of {wildcards.dataset}"
    shell:
        """
        python -m scripts.acquire \
            --source @/dev/fd/3 \
            --classes {params.classes:q} \
            --inputs {input:q} \
            --output {output.sequences:q} \
            --lock {output.lock:q} \
            --partial {params.partial:q} \
            3<<<{params.source:q} 2>&1 | tee -i {log:q}
        """


rule source:
    input:
        source_files,
    output:
        directory(f"{DATA}/source"),
    log:
        "results/{experiment}/logs/{dataset}/source.log",
    priority: FIRST
    localrule: True
    conda:
        "../envs/prepare.yaml"
    params:
        code=lambda wildcards: kind_code(kind_with(wildcards, "source")),
        kind=lambda wildcards: dataset(wildcards)["kind"],
        acquisition=lambda wildcards: json.dumps(settings_result(wildcards, "acquisition")),
    message:
        "Acquire {wildcards.dataset}"
    shell:
        """
        python -m scripts.source \
            --kind {params.kind} \
            --acquisition @/dev/fd/3 \
            --inputs {input:q} \
            --output {output:q} \
            3<<<{params.acquisition:q} 2>&1 | tee -i {log:q}
        """
